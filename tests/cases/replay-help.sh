memplan replay --help
