"""What a training needs, worked out before it begins: parameters, memory, time. Pure arithmetic, without torch."""
