# the same facts as JSON, stable keys
memplan list frameworks --json
memplan list gpus --json | head -n 30
memplan list models --json | head -n 15
