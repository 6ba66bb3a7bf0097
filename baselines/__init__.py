"""What a learned policy must beat, and the measurements."""
