"""The JSON report's contract, table by table."""

# The keys that scripts, CI and acceptance checks read. None may go without raising the schema's number.
CONTRACT = {
    "": "schema kinetoscope sources environment devices categories kernels steps ops findings health idle"
    " compilation",
    "sources": "path bytes events rank complete notes",
    "devices": "rank device name window_us span_us busy_us busy_fraction busy_fraction_of_span compute_us"
    " copy_us communication_us exposed_communication_us idle_us device_time_us kernel_launches"
    " unattributed_kernels launches_without_kernel",
    "categories": "category device_time_us share_of_device_time share_of_window launches distinct_kernels",
    "kernels": "name short_name category launches device_time_us share_of_device_time mean_us median_us"
    " min_us max_us p90_us ops graph source bytes flops speed_of_light",
    "steps": "name start_us duration_us busy_us launches",
    "ops": "name calls host_self_us host_total_us device_self_us device_total_us",
    "findings": "rule severity title saving_us saving_basis evidence advice source",
    "idle": "device cause idle_us share_of_window",
}
