"""Where engines run: in this process, in other processes of the machine, or on Ray."""
