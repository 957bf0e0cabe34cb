"""Reports for other people: one HTML file, or a bundle of all that the verdict rests on."""
