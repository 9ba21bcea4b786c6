# tools that are missing are named before anything is compiled; the host's programs need neither
unset MAKEFLAGS MFLAGS MAKELEVEL MPI
build() {
    make --no-print-directory -C validate "$@" 2>&1 | sed 's/^Makefile:[0-9]*/Makefile/'
}
build NVCC=no-nvcc
build NVCC=true MPI=1 MPICC=no-mpicc
build NVCC=no-nvcc -n host | grep '[*][*][*]' || echo 'host: nothing is missing'
