"""What the GPU programs report: copies and sums."""
