# an unknown option names the closest
memplan list --jsn models
