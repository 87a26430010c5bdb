"""Files of requests: their lines, the files that clients upload, and batches that answer them."""
