"""What people and pages read: jobs, lists, changes, figures."""
