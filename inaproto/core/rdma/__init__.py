"""RoCE reliable connections: requester and responder of a queue pair."""
