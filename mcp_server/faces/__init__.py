"""What the two faces need: both result channels, the commands made from the table, text for people."""
