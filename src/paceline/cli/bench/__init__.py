"""`paceline bench`: measure a server, or an engine in this process."""
