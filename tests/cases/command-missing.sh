memplan
