"""What a memory can do, measured without reinforcement learning: each file one question (`lifelong probe`)."""
