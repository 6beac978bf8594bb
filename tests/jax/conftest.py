"""Eight devices for JAX, before anything asks it for one."""

import importlib.util

if importlib.util.find_spec("jax"):
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
