"""From asks to answers: the step loop, text in and text out, offline and asynchronous."""
