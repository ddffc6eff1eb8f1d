"""Models of questions and passages, and encoders."""
