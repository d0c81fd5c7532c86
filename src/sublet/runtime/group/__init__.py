"""The workers of one job: from the orders of the kernel to messages, and from messages to events."""
