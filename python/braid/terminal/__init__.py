"""What people see on a terminal: where words and tables go, tables that fit, bars with the time
left. Libraries below the commands show things through it.
"""
