from fedast.cli.main import main

main()
