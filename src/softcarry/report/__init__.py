"""What was found, as something to look at: each module turns results into a string."""
