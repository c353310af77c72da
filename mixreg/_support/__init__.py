"""Private tools that know nothing of Mixup: random numbers, trees of tensors, files, processes, memory, numbers."""
