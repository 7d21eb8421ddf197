"""What requests may hold and answers look like: the forms, cursors of lists, types of files."""
