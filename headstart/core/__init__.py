"""What is true: plain Python on plain numbers. No torch, no random generator, no clock."""
