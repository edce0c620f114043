"""What people look at: header, progress, summary, reports."""
