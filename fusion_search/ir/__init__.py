"""The intermediate representation: graphs of core operators, and the one record that describes each operator."""
