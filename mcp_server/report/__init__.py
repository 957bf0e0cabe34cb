"""Reports for other people: one HTML file, or a bundle with everything that the verdict rests on."""
