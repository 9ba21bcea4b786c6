# every shipped model, with the numbers that identify it
memplan list models
