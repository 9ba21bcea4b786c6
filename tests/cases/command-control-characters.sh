# what the user typed cannot drive the terminal
memplan list "$(printf 'a\033[31mb')"
