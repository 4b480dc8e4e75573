"""Describes devices: an engine with its settings on the cores of a machine.

Modules:

* `config`: Reads device files: `config/devices/<name>.yaml` in a workspace, and those that the
  package ships.
* `create`: Writes a device file for this machine: `edgeplan device init`.
* `farm`: Devices tell a workflow engine that measures them side by side where they are, and which
  share a machine.
* `free_memory`: Finds how much memory a process may still take: the least that the system and the
  memory cgroups around it leave.
* `pairs`: Reads pair files: `config/pairs/<name>.yaml`, two processors that run one model together.
* `transport`: A transport reaches a device: on this machine, over ssh, or by a command that runs
  the worker there.
"""
