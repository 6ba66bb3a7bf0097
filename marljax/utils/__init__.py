"""Arrays, trees and devices; nothing here knows of reinforcement learning."""
