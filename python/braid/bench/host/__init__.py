"""`braid bench` between CPUs: who is measured (contestants), how (measure), one rank's run of it
(session), and its record for people (table, plot). What is measured is in braid.cases.host.
"""
