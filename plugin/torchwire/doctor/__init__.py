"""`python -m torchwire doctor`: what of a machine, and between two machines, keeps torchwire from working.

module                    noun
check                     the outcome of one check, and what helps
command, arguments        the command line
without_torchwire         the command where torchwire cannot be imported
report                    outcomes as a table and as JSON
child                     a process for what may hang or crash
torch_check, versions     that torch is one for which torchwire was built
machine_checks            memfd, Unix sockets, process_vm_readv, threads
thread_limit              what limits threads, and how to raise that
process_memory            reading another process's memory
network_checks            interfaces, loopback, IPv6
interfaces                the network interfaces of this machine
secret_check              the file with the group's secret
worker_check              two workers on this machine, and the open files that they take
store_check               the rendezvous store
reachability              connecting to a TCP port, and why it fails
pair                      what the two sides of a pair agree on
measurement               the group of two that measures calls
server, client            the two sides
"""
