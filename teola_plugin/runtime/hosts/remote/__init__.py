"""An engine in another process: client, server, messages, and calls over Unix sockets."""
