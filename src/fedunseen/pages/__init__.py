"""What people look at: reports, the service, live pages, tracking and exports."""
