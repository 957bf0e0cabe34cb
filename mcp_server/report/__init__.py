"""Reports for people who were not there: one HTML file, or a bundle of all that the verdict rests on."""
