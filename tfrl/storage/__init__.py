"""What everything kept on disk rests on: whole files, checkpoint folders, descriptions."""
