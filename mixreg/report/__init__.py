"""What a person looks at: intervals, tables and figures. Knows nothing of how the numbers came about."""
