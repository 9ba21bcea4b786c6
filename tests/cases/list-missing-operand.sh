memplan list
