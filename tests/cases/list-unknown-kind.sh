# one line and where to look
memplan list gpu
