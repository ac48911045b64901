"""Sessions at scripted masters."""
