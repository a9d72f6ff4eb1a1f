"""Published plans of Aceso and Megatron-LM against bounds and plans of ours."""
