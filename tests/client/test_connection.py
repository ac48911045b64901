"""One connection, against scripted peers."""
