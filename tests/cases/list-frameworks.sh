# profiles and the versions they mirror
memplan list frameworks
