# every shipped card, and where its capacity is known from
memplan list gpus
