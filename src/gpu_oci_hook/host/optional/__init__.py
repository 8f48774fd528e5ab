"""Find optional devices and files of the host: features, graphics, MPS, and files that the configuration adds."""
