"""Whether the path that the service uses was proven right."""
