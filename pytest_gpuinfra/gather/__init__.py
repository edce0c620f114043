"""Input and output after the capture, kept in the recording and replayed."""
