"""Maps a reported memory fault to the package: launch, argument, index expression, producer. No I/O."""
