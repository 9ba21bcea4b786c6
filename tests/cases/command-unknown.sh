# a mistyped command
memplan lst models
