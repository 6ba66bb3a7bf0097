"""Arrays, trees and devices; nothing of reinforcement learning."""
